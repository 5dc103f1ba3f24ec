"""Which variables a chat template takes from outside, so that a misspelt one can be refused."""

from __future__ import annotations

from jinja2 import nodes

# Names that jinja itself defines inside loops and macros.
_IMPLICIT = {"loop", "caller", "varargs", "kwargs", "self"}


def free_variables(template: nodes.Template) -> set[str]:
    """Names that are read before anything in the template sets them, in evaluation order.

    `jinja2.meta.find_undeclared_variables` also counts what is set and read inside one branch of a loop, which
    would accept most of a template's own names from a request.
    """
    known, free = set(_IMPLICIT), set[str]()

    def visit(node: nodes.Node) -> None:
        if isinstance(node, nodes.Name):
            if node.ctx != "load":
                known.add(node.name)
            elif node.name not in known:
                free.add(node.name)
        elif isinstance(node, nodes.Assign):
            visit(node.node)
            visit(node.target)
        elif isinstance(node, nodes.For):
            visit(node.iter)
            visit(node.target)
            for child in [node.test, *node.body, *node.else_]:
                if child is not None:
                    visit(child)
        elif isinstance(node, nodes.Macro):
            known.add(node.name)
            for child in [*node.defaults, *node.args, *node.body]:
                visit(child)
        else:
            for child in node.iter_child_nodes():
                visit(child)

    visit(template)
    return free
