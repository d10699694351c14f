"""The public API: from the application that publishes to the application that subscribes."""
