"""Recipe `unsplit`: what an honest-but-curious vendor reads of a split decoder, and what defends against it."""
