"""Progress bars: plain lines, rich, tqdm."""
