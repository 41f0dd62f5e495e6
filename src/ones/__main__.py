"""`python -m ones`: the same as `ones`."""

from ones.cli import main

if __name__ == "__main__":
    main()
