"""Mixed load, kills and connections that come and go for a long time; memory and descriptors must stay."""
