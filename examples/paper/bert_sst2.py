"""BERT classifies sentences by sentiment (SST-2); the paper takes 10,000 to 20,000 sentences."""

from common import adam, options, train
from glue import classifier, sst2


def main() -> None:
    args = options(
        __doc__, samples=10_000, classes=2, length=64, batch_size=64, rate=3e-05, target=0.89
    )
    model = classifier(args)
    train(args, model, sst2(args), adam(model, args))


if __name__ == "__main__":
    main()
