"""BERT finds paraphrases among pairs of sentences (MRPC); the paper takes all 3,600."""

from common import adam, options, train
from glue import classifier, mrpc


def main() -> None:
    args = options(
        __doc__, samples=3_600, classes=2, length=128, batch_size=32, rate=2e-05, target=0.82
    )
    model = classifier(args)
    train(args, model, mrpc(args), adam(model, args))


if __name__ == "__main__":
    main()
