"""Fashion-MNIST as tutorials train it, for `time_to_accuracy.py`: fp32, Adam, batches of 64 from a DataLoader with 4
workers that decode nothing but still call `ToTensor` and `Normalize` for each image. Prints one JSON line an epoch.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader
from torchvision import transforms


def main() -> None:
    started = time.monotonic()
    options = _parse()
    torch.manual_seed(options.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    transform = transforms.Compose(
        [transforms.ToTensor(), transforms.Normalize((0.2860,), (0.3530,))]
    )
    train, test = (
        torchvision.datasets.FashionMNIST(options.folder, train=is_train, transform=transform)
        for is_train in (True, False)
    )
    if options.samples:
        train = torch.utils.data.Subset(train, range(options.samples))
        test = torch.utils.data.Subset(test, range(options.samples // 6))
    model = torchvision.models.resnet18(num_classes=10).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    train_loader = DataLoader(train, batch_size=64, shuffle=True, num_workers=4)
    test_loader = DataLoader(test, batch_size=64, num_workers=4)
    for epoch in range(1, options.epochs + 1):
        model.train()
        for images, labels in train_loader:
            images, labels = images.to(device).expand(-1, 3, -1, -1), labels.to(device)
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
        accuracy = evaluate(model, test_loader, device)
        seconds = time.monotonic() - started
        print(json.dumps({"epoch": epoch, "accuracy": accuracy, "seconds": seconds}), flush=True)
        if accuracy >= options.target:
            return


def evaluate(model: nn.Module, loader: DataLoader, device: torch.device) -> float:
    model.eval()
    correct = total = 0
    with torch.no_grad():
        for images, labels in loader:
            images, labels = images.to(device).expand(-1, 3, -1, -1), labels.to(device)
            correct += int((model(images).argmax(dim=1) == labels).sum())
            total += len(labels)
    return correct / total


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", help="where torchvision finds FashionMNIST")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--target", type=float, default=0.92)
    parser.add_argument("--samples", type=int, default=0, help="of the training set; 0: all")
    return parser.parse_args()


if __name__ == "__main__":
    main()
