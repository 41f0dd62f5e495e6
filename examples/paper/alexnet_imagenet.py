"""AlexNet on a part of ImageNet; the paper takes 10,000 to 20,000 images, 1,000 per class."""

from common import options, sgd, train
from images import imagenet
from models.alexnet import alexnet


def main() -> None:
    args = options(
        __doc__, samples=10_000, classes=10, image_size=224, batch_size=128, rate=0.01, target=0.4
    )
    model = alexnet(args.classes)
    train(args, model, imagenet(args), sgd(model, args))


if __name__ == "__main__":
    main()
