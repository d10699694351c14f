"""Run as a process: appends predictable records, and prints the acknowledged numbers, until killed."""

import hashlib
import random
import sys

from penstock.journal import InlineWriter, JournalConfig, JournalWriter


def payload_of(sequence: int) -> bytes:
    digest = hashlib.sha256(str(sequence).encode()).digest()
    return digest * (1 + sequence % 23)


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def append_alone(journal: JournalWriter, choice: random.Random) -> None:
    """Append single records inline, and print each number when the record is on the disk; the journal learns of them at
    the end."""

    def work(writer: InlineWriter) -> None:
        for _ in range(choice.randrange(1, 30)):
            sequence = writer.next_sequence
            if not writer.append(payload_of(sequence), sequence * 1_000):
                return  # the segment has no room
            say("alone", sequence)

    journal.inline_commit(work)


def main(path: str, seed: int, records_max: int) -> None:
    choice = random.Random(seed)
    with JournalWriter.open(path, JournalConfig(segment_bytes=32_768, linger_us=200)) as journal:
        say("open", journal.next_sequence)
        while journal.next_sequence <= records_max:
            for _ in range(choice.randrange(1, 60)):
                sequence = journal.next_sequence
                journal.append(payload_of(sequence), sequence * 1_000)
            if choice.random() < 0.7:
                say(journal.commit())
                append_alone(journal, choice)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
