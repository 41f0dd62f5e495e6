"""Inception v3 on a part of ImageNet; the paper takes 10,000 to 20,000 images, 1,000 per class."""

from common import options, sgd, train
from images import imagenet
from models.inception import InceptionV3, loss_with_auxiliary


def main() -> None:
    args = options(
        __doc__, samples=10_000, classes=10, image_size=299, batch_size=64, rate=0.025, target=0.45
    )
    model = InceptionV3(args.classes)
    train(args, model, imagenet(args), sgd(model, args), loss_with_auxiliary)


if __name__ == "__main__":
    main()
