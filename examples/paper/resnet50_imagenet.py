"""ResNet-50 on a part of ImageNet; the paper takes 10,000 to 20,000 images, 1,000 per class."""

from common import options, sgd, train
from images import imagenet
from models.resnet import resnet50


def main() -> None:
    args = options(
        __doc__, samples=10_000, classes=10, image_size=224, batch_size=64, rate=0.025, target=0.45
    )
    model = resnet50(args.classes)
    train(args, model, imagenet(args), sgd(model, args))


if __name__ == "__main__":
    main()
