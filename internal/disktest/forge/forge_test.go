package forge
