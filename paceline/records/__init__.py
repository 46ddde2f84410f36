"""What a run writes while it trains, and how it is read back; looking at it is `ui`'s business."""
