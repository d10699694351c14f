"""The gateway on real WebSockets, trees and feeds."""
