"""YAML files, with the lines that their values stand on."""
