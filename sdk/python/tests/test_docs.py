"""What is documented is what the code does: run by the Go test beside this. It reads the sources, so PyTorch need not be installed.

Of every name that a module gives out, and of its methods: there is a text; it has each parameter, and each exception that the code raises by name, itself or
by what it calls in this package, and OSError for what it calls of os. Each parameter, attribute and property has a type, what returns something a section that says
what, offsets and lengths their unit, and several of them their shape. The stubs have the same parameters, with defaults where the code has them.
"""

import ast
import builtins
import os
import re
import unittest

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lanefs")
GIVEN_OUT = {"__init__": None, "kv": None, "lmcache": None, "torch.__init__": None}
STUBS = {"__init__.pyi": "__init__", "kv.pyi": "kv", "lmcache.pyi": "lmcache", os.path.join("torch", "__init__.pyi"): "torch.__init__"}
ITSELF = {"__new__", "__init__", "__reduce__", "__enter__", "__exit__", "__del__", "__repr__"}  # what everybody knows; a constructor's text is its class's
OWN = {"NotLaneFS": OSError, "Full": OSError, "Error": Exception}      # of this package and of modules
TYPES = {"f": "File", "file": "File", "session": "Session", "_session": "Session", "driver": "Driver", "_driver": "Driver", "ring": "Ring", "_layout": "Layout",
         "stage": "Stage", "_stage": "Stage", "flight": "Flight", "_flight": "Flight", "_f": "File", "buffer": "Buffer", "_fds": "Descriptors", "reply": "Reply", "mark": "Mark"}
AMOUNTS = re.compile(r"(?:\w+_)?(?:offset|length|size|start|end)s?|nbytes|granule|timeout")  # names of what has a unit
HARMLESS = {"fspath", "fsdecode", "fsencode", "getpid", "strerror", "get", "join", "dirname", "abspath", "basename", "exists", "realpath"}


def exception(name):
    return OWN.get(name) or getattr(builtins, name, None)


class Source:
    """The package's functions, classes and imports."""

    def __init__(self):
        self.functions, self.classes, self.imports, self.trees = {}, {}, {}, {}
        for at, _, names in os.walk(HERE):
            for name in names:
                if name.endswith(".py"):
                    module = os.path.relpath(os.path.join(at, name), HERE)[:-3].replace(os.sep, ".")
                    with open(os.path.join(at, name)) as f:
                        self.add(module, ast.parse(f.read()))

    def add(self, module, tree):
        self.trees[module], self.imports[module] = tree, {}
        package = module.rpartition(".")[0]
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level:
                up = package.split(".")[:1 - node.level or None] if package else []
                where = ".".join(up + ([node.module] if node.module else []))
                for a in node.names:
                    self.imports[module][a.asname or a.name] = (where, a.name)
        for node in tree.body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self.functions[module, None, node.name] = node
            if isinstance(node, ast.ClassDef):
                self.classes[module, node.name] = node
                for m in node.body:
                    if isinstance(m, (ast.FunctionDef, ast.AsyncFunctionDef)):
                        self.functions[module, node.name, m.name] = m

    def find(self, module, name):
        """Where a name of a module is defined."""
        for _ in range(5):
            if (module, None, name) in self.functions or (module, name) in self.classes:
                return module, name
            if name not in self.imports.get(module, {}):
                return None
            where, name = self.imports[module][name]
            module = where or "__init__"
        return None

    def of_class(self, name):
        return next(((m, c) for m, c in self.classes if c == name), None)

    def methods(self, cls):
        """Names of a class's methods, and of the package's classes that it is made of."""
        found = (self.find(cls[0], b.id) for b in self.classes[cls].bases if isinstance(b, ast.Name))
        return {k[2] for k in self.functions if k[:2] == cls}.union(*(self.methods(b) for b in found if b in self.classes))

    def method(self, cls, name):
        """A method of a class, or of the package's classes that it is made of."""
        module, c = cls
        if (module, c, name) in self.functions:
            return module, c, name
        for base in self.classes[cls].bases:
            found = isinstance(base, ast.Name) and self.find(module, base.id)
            if found and found in self.classes:
                key = self.method(found, name)
                if key:
                    return key
        return None


def is_property(node):
    return any(isinstance(d, ast.Name) and d.id == "property" for d in node.decorator_list)


class Raised:
    """The names of exceptions that functions raise."""

    def __init__(self, source):
        self.source, self.known = source, {}

    def of(self, key):
        if key not in self.known:
            self.known[key] = set()  # of a recursion
            self.known[key] = self.block(self.source.functions[key].body, key)
        return self.known[key]

    def constructor(self, cls):
        key = self.source.method(cls, "__init__")
        return self.of(key) if key else set()

    def block(self, nodes, key):
        return set().union(*(self.node(n, key) for n in nodes)) if nodes else set()

    def node(self, n, key):
        if isinstance(n, ast.Try):
            out = self.block(n.body, key)
            for h in n.handlers:
                types = h.type.elts if isinstance(h.type, ast.Tuple) else [h.type] if h.type else []
                caught = [exception(getattr(t, "id", getattr(t, "attr", ""))) for t in types] or [BaseException]
                if not any(isinstance(x, ast.Raise) and x.exc is None for x in ast.walk(h)):
                    out = {e for e in out if not any(c and issubclass(exception(e), c) for c in caught)}
            return out | self.block([s for h in n.handlers for s in h.body], key) | self.block(n.orelse + n.finalbody, key)
        out = set()
        if isinstance(n, ast.Raise) and n.exc is not None:
            e = n.exc.func if isinstance(n.exc, ast.Call) else n.exc
            if isinstance(e, (ast.Name, ast.Attribute)) and exception(getattr(e, "id", getattr(e, "attr", ""))):
                out.add(getattr(e, "id", getattr(e, "attr", "")))
        if isinstance(n, ast.Call):
            out |= self.call(n.func, key)
        if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == "self" and key[1]:
            found = self.source.method((key[0], key[1]), n.attr)
            if found and is_property(self.source.functions[found]):
                out |= self.of(found)
        return out | self.block(list(ast.iter_child_nodes(n)), key)

    def call(self, f, key):
        module, cls, _ = key
        if isinstance(f, ast.Name):
            found = self.source.find(module, f.id)
            if found in self.source.classes:
                return self.constructor(found)
            return self.of((found[0], None, found[1])) if found else set()
        if not isinstance(f, ast.Attribute):
            return set()
        at = f.value
        if isinstance(at, ast.Name) and at.id in ("self", "cls") and cls:
            found = self.source.method((module, cls), f.attr)
            return self.of(found) if found else set()
        if isinstance(at, ast.Name) and at.id == "os" and f.attr not in HARMLESS:
            return {"OSError"}
        if isinstance(at, ast.Name) and at.id in self.source.imports[module]:
            where, name = self.source.imports[module][at.id]
            where = f"{where}.{name}" if where else name
            if where in self.source.trees:
                found = self.source.find(where, f.attr)
                if found in self.source.classes:
                    return self.constructor(found)
                return self.of((found[0], None, found[1])) if found else set()
        of = self.source.of_class(TYPES.get(getattr(at, "id", getattr(at, "attr", "")), getattr(at, "id", "")))
        found = of and self.source.method(of, f.attr)
        return self.of(found) if found else set()


def section(text, title):
    """The lines of a section of a text in NumPy's style."""
    m = re.search(rf"^{title}\n-+\n((?:.*\n?)*?)(?=^\w[^\n]*\n-+\n|\Z)", text, re.M)
    return m.group(1) if m else ""


def names_in(text, title):
    heads = [line for line in section(text, title).split("\n") if line and not line.startswith(" ")]
    return {n.rpartition(".")[2].lstrip("*") for line in heads for n in re.findall(r"[*\w.]+", line.split(" : ")[0])}


def entries(text, title):
    """(names, type, what is said of them) of a section."""
    out = []
    for line in section(text, title).split("\n"):
        if line and not line.startswith(" "):
            names, _, kind = line.partition(" : ")
            out.append([names, kind, ""])
        elif line and out:
            out[-1][2] += line.strip() + " "
    return out


def gives(node):
    """Whether a function returns something else than None, or yields."""
    todo = list(node.body)
    while todo:
        n = todo.pop()
        if isinstance(n, ast.Return) and n.value is not None and not (isinstance(n.value, ast.Constant) and n.value.value is None) or isinstance(n, (ast.Yield, ast.YieldFrom)):
            return True
        if not isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            todo += ast.iter_child_nodes(n)
    return False


def parameters(node):
    """Names, and whether each has a default."""
    a = node.args
    plain = a.posonlyargs + a.args
    out = [(x.arg, i >= len(plain) - len(a.defaults)) for i, x in enumerate(plain)]
    out += [(a.vararg.arg, False)] if a.vararg else []
    out += [(x.arg, d is not None) for x, d in zip(a.kwonlyargs, a.kw_defaults)]
    out += [(a.kwarg.arg, False)] if a.kwarg else []
    return [p for p in out if p[0] not in ("self", "cls")]


class Docs(unittest.TestCase):
    def setUp(self):
        self.source = Source()
        self.raised = Raised(self.source)

    def given_out(self):
        """(full name, key of a function, or of a class and its constructor)"""
        for module in GIVEN_OUT:
            names = next(ast.literal_eval(n.value) for n in self.source.trees[module].body
                         if isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") == "__all__")
            for name in names:
                found = self.source.find(module, name) or self.source.find("torch._checkpoint", name)
                if found is None:
                    self.assertIn(name, ("__version__", "kv", "Submission"))  # the last is LMCache's where that is installed
                    continue
                yield name, *found

    def test_all(self):
        wrong, seen = [], 0
        for name, module, real in self.given_out():
            if (module, None, real) in self.source.functions:
                wrong += self.check(name, self.source.functions[module, None, real], self.raised.of((module, None, real)))
                seen += 1
                continue
            node = self.source.classes[module, real]
            key = self.source.method((module, real), "__init__")
            wrong += self.check(name, self.source.functions[key] if key else None, self.raised.constructor((module, real)), ast.get_docstring(node) or "")
            done = {"__init__"}
            for cls in [(module, real)] + [self.source.find(module, b.id) for b in node.bases if isinstance(b, ast.Name) and self.source.find(module, b.id) in self.source.classes]:
                for m in self.source.classes[cls].body:
                    if not isinstance(m, (ast.FunctionDef, ast.AsyncFunctionDef)) or m.name in done:
                        continue
                    done.add(m.name)
                    if m.name in ITSELF or m.name.startswith("_") and not m.name.startswith("__"):
                        continue
                    seen += 1
                    wrong += self.check(f"{name}.{m.name}", m, self.raised.of((*cls, m.name)))
        self.assertEqual(wrong, [], "\n" + "\n".join(wrong))
        self.assertGreater(seen, 80)

    def check(self, name, node, raised, text=None):
        text = (ast.get_docstring(node) or "") if text is None else text
        if not text:
            return [f"{name}: no text"]
        wrong = []
        have = names_in(text, "Parameters")
        if node is not None:
            missing = [p for p, _ in parameters(node) if p not in have]
            wrong += [f"{name}: no parameter {', '.join(missing)}"] if missing else []
            extra = have - {p for p, _ in parameters(node)} if text is not None else set()
            wrong += [f"{name}: {', '.join(sorted(extra))} is no parameter"] if extra else []
        said = [exception(e) for e in names_in(text, "Raises") if exception(e)]
        for e in sorted(raised):
            if not any(issubclass(exception(e), s) for s in said):
                wrong.append(f"{name}: raises {e}, which its text does not say")
        return wrong + self.sections(name, node, text)

    def sections(self, name, node, text):
        wrong = []
        if node is not None and is_property(node):
            if not re.match(r"\w[\w.]*(?: (?:of|or|to) [\w.]+)*: ", text):
                wrong.append(f"{name}: its text does not begin with its type")
        elif node is not None and node.name != "__init__" and gives(node) != bool(section(text, "Returns") or section(text, "Yields")):
            wrong.append(f"{name}: a section Returns or Yields {'is missing' if gives(node) else 'of nothing'}")
        for title in "Parameters", "Attributes":
            for names, kind, said in entries(text, title):
                if not kind and not names.startswith("*"):
                    wrong.append(f"{name}: {names} has no type")
                if any(AMOUNTS.fullmatch(n) for n in names.split(", ")):
                    if not re.match("Bytes|Seconds|How many bytes", said):
                        wrong.append(f"{name}: {names} has no unit")
                    if kind.startswith("sequence") and ", shape (" not in kind:
                        wrong.append(f"{name}: {names} has no shape")
        return wrong

    def test_stubs(self):
        wrong = []
        for file, module in STUBS.items():
            with open(os.path.join(HERE, file)) as f:
                tree = ast.parse(f.read())
            for node in tree.body:
                if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                    continue
                found = self.source.find(module, node.name) or self.source.find("torch._checkpoint", node.name)
                if not found and node.name == "Submission":
                    continue
                if not found:
                    wrong.append(f"{file}: there is no {node.name}")
                    continue
                if isinstance(node, ast.FunctionDef):
                    self.compare(wrong, f"{file}: {node.name}", node, self.source.functions[found[0], None, found[1]])
                    continue
                has = {m.name for m in node.body if isinstance(m, (ast.FunctionDef, ast.AsyncFunctionDef))}
                for m in node.body:
                    if isinstance(m, (ast.FunctionDef, ast.AsyncFunctionDef)):
                        key = self.source.method(found, m.name)
                        if key:
                            self.compare(wrong, f"{file}: {node.name}.{m.name}", m, self.source.functions[key])
                        elif m.name != "__init__":
                            wrong.append(f"{file}: {node.name} has no {m.name}")
                public = {m for m in self.source.methods(found) if not m.startswith("_")}
                if public - has:  # also those that a base class of PyTorch has, as it may have them to be defined
                    wrong.append(f"{file}: {node.name} lacks {', '.join(sorted(public - has))}")
            stated = {n.name for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
            for name, mod, _ in self.given_out():
                if mod.split(".")[0] == module.split(".")[0] and name not in stated and "torch" not in (module, mod):
                    wrong.append(f"{file}: no {name}")
        self.assertEqual(wrong, [], "\n" + "\n".join(wrong))

    def compare(self, wrong, name, stub, real):
        if parameters(stub) != parameters(real):
            wrong.append(f"{name}: {parameters(stub)} in the stub, {parameters(real)} in the code")
        if is_property(stub) != is_property(real):
            wrong.append(f"{name}: a property in one only")


if __name__ == "__main__":
    unittest.main(verbosity=2)
