"""BERT judges the grammar of sentences (CoLA); the paper takes 5,000 to 8,000 of them."""

from common import adam, options, train
from glue import classifier, cola


def main() -> None:
    args = options(
        __doc__, samples=5_000, classes=2, length=64, batch_size=64, rate=3e-05, target=0.8
    )
    model = classifier(args)
    train(args, model, cola(args), adam(model, args))


if __name__ == "__main__":
    main()
