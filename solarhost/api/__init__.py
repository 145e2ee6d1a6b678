"""REST blueprints: parse, call one method of a part, render."""
