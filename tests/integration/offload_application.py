"""An application with an offload process, for tests that kill one of the two: prints the process's id, then waits."""

import sys
import time

from penstock.engine.client.consumer import ConsumerRequest
from penstock.engine.client.offload import offloaded_records

if __name__ == "__main__":
    source = offloaded_records(
        ConsumerRequest(host="127.0.0.1", port=int(sys.argv[1]), topics=("md.>",), cls="adaptive")
    )
    sys.stdout.write(f"{source.process.pid}\n")
    sys.stdout.flush()
    time.sleep(600)
