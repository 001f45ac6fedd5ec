#!/usr/bin/env python3
"""Recovers a registry hive with another program: recover.py regipy|registry HIVE OUT LOG..., the logs in their order."""
import io
import shutil
import sys

program, hive, out, *logs = sys.argv[1:]
if program == "regipy":
    from regipy.recovery import apply_transaction_logs

    first = logs[0] if len(logs) == 2 else None
    apply_transaction_logs(hive, logs[-1], secondary_log_path=first, restored_hive_path=out)
else:
    from Registry import RegistryLog

    with open(hive, "rb") as f:
        data = io.BytesIO(f.read())
    last = None
    for path in logs:
        data.seek(0)
        log = RegistryLog.RegistryLog(data, path)
        if last is None:
            if not log.is_eligible_log():
                sys.exit("the log is stale")
            last = log.recover_hive()
        else:
            last = log.recover_hive_continue(last + 1)
    with open(out, "wb") as f:
        f.write(data.getvalue())
