#!/bin/sh
# The table that docs/guide/own-network.md names: networks of torchvision and timm, as `fedshift models` tells of them.
# It needs the extra fedshift[timm]; nothing is fetched.
set -eu
tv="resnet18 resnet50 mobilenet_v3_small efficientnet_b0 convnext_tiny vit_b_16 densenet121 vgg11_bn swin_t
    regnet_y_400mf shufflenet_v2_x1_0"
timm="resnet18 mobilenetv3_small_100 convnext_atto efficientnet_b0 vit_tiny_patch16_224 swin_tiny_patch4_window7_224"
names=""
for name in $tv; do names="$names torchvision:$name"; done
for name in $timm; do names="$names timm:$name"; done
# shellcheck disable=SC2086  # one argument for each name
exec "${PYTHON:-python}" -m fedshift models --markdown --size 64 $names
