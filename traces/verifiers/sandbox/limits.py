"""What confined code may use."""

CPU_LIMIT_S = 2
MEMORY_LIMIT_BYTES = 512 * 1024 * 1024
"""Of one process."""
FILE_LIMIT_BYTES = 1024 * 1024
FOLDER_LIMIT_BYTES = 16 * 1024 * 1024
FOLDER_FILES_LIMIT = 1000
"""Files and folders in it."""
OPEN_FILES_LIMIT = 64
PROCESSES_LIMIT = 16
"""Processes and threads together."""
MESSAGE_LIMIT_BYTES = 16 * 1024 * 1024
"""Of one value that crosses from the code to its tests."""
PRINTED_LIMIT_CHARS = 100_000
"""Of what the code prints during one call; the rest is lost."""
WALL_LIMIT_S = 10.0
