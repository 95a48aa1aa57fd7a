"""What README shows, to be run and changed. No part of the server."""
