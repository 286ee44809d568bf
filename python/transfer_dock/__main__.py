"""``python -m transfer_dock …``: the command ``tdock``."""

from transfer_dock.executables import main

if __name__ == "__main__":
    main()
