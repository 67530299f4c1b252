"""An MCP server with a tool that counts, one that fails, and one that ends the server."""

import os
import sys

from mcp.server import MCPServer

server = MCPServer("letters")


@server.tool()
def count(text: str) -> int:
    """Counts the letters of a text."""
    return len(text)


@server.tool()
def fail() -> str:
    """Fails."""
    raise ValueError("it cannot")


@server.tool()
def leave() -> str:
    """Ends the server."""
    os._exit(3)


server.run(transport=sys.argv[1] if len(sys.argv) > 1 else "stdio")
