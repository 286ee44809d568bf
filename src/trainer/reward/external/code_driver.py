# Runs inside the sandbox, as `python -I -c`, with one task as JSON in descriptor 4. What it reports is believed only as
# far as the host compares it with what never enters the sandbox.
import ast, json, math, os, sys

BIG = "\0int"  # the name of what stands for an integer that JSON has no exact number for

def digits(value):
    try:
        return str(value)
    except ValueError:  # too many for Python
        return hex(value)

def decode(pairs):
    try:
        return int(pairs[BIG]) if list(pairs) == [BIG] else pairs
    except ValueError:
        return pairs

def encode(value, strict, depth=0):
    """A value of plain types as JSON; strict: types that compare differently are told apart."""
    if depth > 50:
        raise ValueError("nested too deeply")
    kind = type(value)
    if value is None or kind in (bool, str):
        return value
    if kind is int:
        exact = abs(value) < 2**53 or (not strict and -(2**63) <= value < 2**64)
        return value if exact else {BIG: digits(value)}
    if kind is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    items = lambda values: [encode(one, strict, depth + 1) for one in values]
    if kind is list or (kind is tuple and not strict):
        return items(value)
    if kind is tuple:
        return {"tuple": items(value)}
    if kind in (set, frozenset):
        return {"set": sorted(items(value), key=json.dumps)}
    if kind is dict:
        if not strict:
            return {str(key): encode(one, strict, depth + 1) for key, one in value.items()}
        pairs = [[encode(key, strict, depth + 1), encode(one, strict, depth + 1)] for key, one in value.items()]
        return {"dict": sorted(pairs, key=json.dumps)}
    if kind is bytes:
        return {"bytes": value.hex()}
    raise ValueError("not a plain value")

def plan(text):
    """The tests of a text of assertions, with what they expect, where that is a literal."""
    body = ast.parse(text).body
    prelude = [ast.unparse(one) for one in body if isinstance(one, (ast.Import, ast.ImportFrom))]
    asserts = [one for one in body if isinstance(one, ast.Assert)]
    if not asserts or len(prelude) + len(asserts) != len(body):
        return [{"statement": text}]
    tests = []
    for one in asserts:
        test = {"prelude": "\n".join(prelude)}
        check = one.test
        try:
            if not (isinstance(check, ast.Compare) and len(check.ops) == 1 and isinstance(check.ops[0], ast.Eq)):
                raise ValueError
            test["expected"] = encode(ast.literal_eval(check.comparators[0]), True)
            test["expression"] = ast.unparse(check.left)
        except (ValueError, TypeError, SyntaxError):
            test["statement"] = ast.unparse(one)
        tests.append(test)
    return tests

def main():
    with os.fdopen(4, "rb") as task_file:
        task = json.load(task_file, object_hook=decode)
    os.write(2, b"begun\n")
    mode, code = task["mode"], task.get("code", "")
    run, build, calculate = exec, compile, eval  # before the code can replace them
    names = {"__name__": "__main__", "__builtins__": __builtins__}
    if mode == "stdin":
        del task
        run(build(code, "answer.py", "exec"), names)
        return
    channel = os.dup(1)
    os.dup2(os.open("/dev/null", os.O_WRONLY), 1)
    def report(result, write=os.write, dumps=json.dumps):
        data = dumps(result).encode()
        while data:
            data = data[write(channel, data):]
    if mode == "plan":
        report(plan(task["tests"]))
        return
    names["__name__"] = "answer"
    run(build(code, "answer.py", "exec"), names)
    if mode == "function":
        owner = names.get("Solution")
        name = task["name"]
        function = names[name] if name in names else getattr(owner(), name)
        report({"value": encode(function(*task["arguments"]), False)})
        return
    run(build(task.get("prelude", ""), "tests.py", "exec"), names)
    if "expression" in task:
        report({"value": encode(calculate(build(task["expression"], "tests.py", "eval"), names), True)})
        return
    run(build(task["statement"], "tests.py", "exec"), names)
    report({"passed": task["secret"]})

main()
