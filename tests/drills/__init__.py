"""Long drills: runs are killed, stopped and restarted, and must end as if nothing had happened.

`python -m tests.drills` runs them whole, `test_drills.py` with few seeds.
"""
