"""The console in a real Chromium (`make browser`)."""
