"""GoogLeNet on a part of CIFAR-10; the paper takes 20,000 to 40,000 images."""

from common import options, sgd, train
from images import cifar10
from models.googlenet import googlenet_small


def main() -> None:
    args = options(
        __doc__, samples=20_000, classes=10, image_size=32, batch_size=256, rate=0.1, target=0.7
    )
    model = googlenet_small(args.classes)
    train(args, model, cifar10(args), sgd(model, args))


if __name__ == "__main__":
    main()
