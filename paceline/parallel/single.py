"""`single`: one process, one device."""

from __future__ import annotations

from paceline.config.schema import ParallelConfig, RunConfig
from paceline.errors import UserError
from paceline.models.spec import ModelSpec
from paceline.parallel.contract import Carried
from paceline.parallel.place import Place
from paceline.parallel.whole import WholeModel, build_module
from paceline.parallel.world import World
from paceline.records.phases import PhaseClock


class Single:
    def place(self, config: ParallelConfig, num_devices: int, rank: int) -> Place:
        if num_devices > 1:
            raise UserError(
                f"parallel.strategy = 'single' uses one device, and {num_devices} ranks were asked for",
                "use --strategy ddp, or --ranks 1",
            )
        return Place(num_processes=1, devices_per_process=1, data_rank=0, num_data_ranks=1)

    def carry(self, spec: ModelSpec, config: RunConfig, world: World, clock: PhaseClock) -> Carried:
        module = build_module(spec, config, world.device)
        place = self.place(config.parallel, 1, 0)
        return WholeModel(module, spec, config, place, [world.device], clock)
