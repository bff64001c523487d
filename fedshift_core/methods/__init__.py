"""The parameters of each method, which its server half and its node half are given. No torch, no Flower."""
