"""Lists the tensors in files that PyTorch has pickled, without PyTorch and without running what they contain.

A pickle may name functions to call. Here each name stands for an object that only records how it was called, and a
name that is not in the table below ends the program. The numbers of the tensors are not read: what is printed says where
in which file they are.

    python3 -I -S -c PROGRAM fsdp FOLDER       model_world_size_W_rank_R.pt, in FOLDER
    python3 -I -S -c PROGRAM dcp FOLDER        .metadata and what it refers to, in FOLDER

prints JSON, one object in a line. {"name", "rank", "full_shape", "placements", "mesh"} and a box, or {"name", "shape",
"offsets"} and a box; a box is {"file", "begin", "dtype", "sizes", "strides"}. {"done": true} is the last line, or
{"error": TEXT}.
"""

import io
import json
import os
import pickle
import re
import struct
import sys
import zipfile

MOST_PICKLED = 512 << 20
DTYPES = {
    "float64": ("F64", 8), "double": ("F64", 8), "float32": ("F32", 4), "float": ("F32", 4), "float16": ("F16", 2),
    "half": ("F16", 2), "bfloat16": ("BF16", 2), "int64": ("I64", 8), "int32": ("I32", 4), "int16": ("I16", 2),
    "int8": ("I8", 1), "uint8": ("U8", 1), "bool": ("BOOL", 1),
}  # fmt: skip
STORAGES = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "UntypedStorage": "uint8",
}  # fmt: skip
# Names that files may contain, each only as a record: module -> names.
KNOWN = {
    "torch": {"Size", "device", *DTYPES, *STORAGES, "Tensor", "strided", "contiguous_format", "preserve_format"},
    "torch._utils": {"_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_wrapper_subclass", "_rebuild_parameter",
                     "_rebuild_parameter_with_state"},
    "torch._tensor": {"_rebuild_from_type_v2"},
    "torch.storage": {"UntypedStorage", "TypedStorage"},
    "torch.nn.parameter": {"Parameter"},
    "torch.serialization": {"_get_layout", "_get_dtype"},
    "torch.distributed.tensor": {"DTensor"},
    "torch.distributed._tensor": {"DTensor"},
    "torch.distributed._tensor.api": {"DTensor"},
    "torch.distributed.tensor._api": {"DTensor"},
    "torch.distributed.tensor._dtensor_spec": {"DTensorSpec", "TensorMeta", "ShardOrderEntry"},
    "torch.distributed._tensor._dtensor_spec": {"DTensorSpec", "TensorMeta"},
    "torch.distributed._tensor.placement_types": {"DTensorSpec", "TensorMeta", "Shard", "Replicate", "Partial",
                                                  "_Partial", "_StridedShard"},
    "torch.distributed.tensor.placement_types": {"DTensorSpec", "TensorMeta", "Shard", "Replicate", "Partial",
                                                 "_StridedShard"},
    "torch.distributed.device_mesh": {"DeviceMesh", "_MeshLayout"},
    "torch.distributed._mesh_layout": {"_MeshLayout", "_FlatLayout"},
    "torch.distributed.checkpoint.metadata": {
        "Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata", "TensorProperties",
        "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.planner": {"SavePlan", "WriteItem", "WriteItemType", "TensorWriteData",
                                             "BytesIOWriteData"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo", "_StoragePrefix"},
    "torch.distributed._shard.sharded_tensor.metadata": {"TensorProperties", "MEM_FORMAT_ENCODING"},
    "pathlib": {"PosixPath", "PurePosixPath", "Path"},
    "builtins": {"set", "frozenset", "list", "dict", "tuple", "slice"},
    "collections": {"OrderedDict", "defaultdict"},
    "numpy.core.multiarray": {"_reconstruct", "scalar"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    "numpy": {"ndarray", "dtype"},
}  # fmt: skip


class Dictionary(dict):
    """With attributes, which an OrderedDict of weights has and nothing here needs."""

    def __setstate__(self, state):
        pass


HARMLESS = {("collections", "OrderedDict"): Dictionary, ("builtins", "set"): set, ("builtins", "frozenset"): frozenset,
            ("builtins", "list"): list, ("builtins", "dict"): dict, ("builtins", "tuple"): tuple}  # fmt: skip


class Refused(Exception):
    pass


class Record:
    """What a call of a name in a pickle makes."""

    def __init__(self, name, args):
        self.name, self.args, self.state = name, args, None

    def __setstate__(self, state):
        self.state = state

    def __hash__(self):
        name = self.state.get("fqn") if isinstance(self.state, dict) else None
        return hash((self.name, len(self.args), name if isinstance(name, str) else None))

    def __eq__(self, other):
        return isinstance(other, Record) and (self.name, self.args, self.state) == (other.name, other.args, other.state)

    def get(self, key, place=None):
        """A field of a dataclass: from its state, or from its arguments."""
        state = self.state
        if isinstance(state, tuple):
            state = {**(state[0] or {}), **(state[1] or {})}
        if isinstance(state, dict) and key in state:
            return state[key]
        if place is not None and place < len(self.args):
            return self.args[place]
        return None

    def __setitem__(self, key, value):
        raise Refused(f"{self.name} is used as a dictionary")


class Name:
    """A name in a pickle. Classes are made without arguments first, and get their state then."""

    def __init__(self, name):
        self.name = name

    def __call__(self, *args):
        return Record(self.name, args)

    def __hash__(self):
        return hash(self.name)

    def __eq__(self, other):
        return isinstance(other, Name) and self.name == other.name


def made_new(name):
    """A class for the opcode that makes an object of a class without calling it."""

    class New(Record):
        def __new__(cls, *args):  # of which the opcode calls nothing else
            new = object.__new__(cls)
            Record.__init__(new, name, args)
            return new

        def __init__(self, *args):
            pass

    made = New
    made.__qualname__ = made.__name__ = name
    return made


class Storage:
    def __init__(self, kind, key):
        self.dtype, self.key = STORAGES.get(kind), key
        if self.dtype is None:
            raise Refused(f"numbers of the kind {kind} are not read")


CLASSES = {}


class Reader(pickle.Unpickler):
    def find_class(self, module, name):
        if (module, name) in HARMLESS:
            return HARMLESS[module, name]
        if name not in KNOWN.get(module, ()):
            raise Refused(f"the pickle names {module}.{name}, which no tensor needs; it is not run")
        if name[0].isupper() or name == "_StorageInfo" or name.startswith("_Mesh") or name == "_FlatLayout":
            return CLASSES.setdefault(name, made_new(name))
        return Name(name)

    def persistent_load(self, reference):
        kind = reference[1]
        kind = kind.name if isinstance(kind, Name) else getattr(kind, "__name__", str(kind))
        return Storage(kind, str(reference[2]))


def unpickle(data, where):
    if len(data) > MOST_PICKLED:
        raise Refused(f"{where}: {len(data)} bytes are pickled, more than {MOST_PICKLED}")
    try:
        return Reader(io.BytesIO(data)).load()
    except Refused:
        raise
    except Exception as problem:
        raise Refused(f"damaged, or no pickle of tensors: {type(problem).__name__}: {problem}") from None


class Archive:
    """A file that torch.save has written, or a part of one."""

    def __init__(self, path, begin=0, length=None):
        self.path = path
        self.file = open(path, "rb")
        size = os.fstat(self.file.fileno()).st_size
        self.begin, self.length = begin, size - begin if length is None else length
        if begin < 0 or self.length <= 0 or begin + self.length > size:
            raise Refused(f"bytes {begin} to {begin + self.length} are outside of the {size} bytes of {path}")
        try:
            self.zip = zipfile.ZipFile(Window(self.file, self.begin, self.length))
        except zipfile.BadZipFile:
            raise Refused("no file of torch.save in its present format, or cut short") from None
        self.entries = {entry.filename.split("/", 1)[-1]: entry for entry in self.zip.infolist()}

    def pickled(self):
        if "data.pkl" not in self.entries:
            raise Refused("no file of torch.save: it lacks data.pkl")
        order = self.entries.get("byteorder")
        if order is not None and self.zip.read(order) != b"little":
            raise Refused("its numbers are not little-endian")
        if self.entries["data.pkl"].file_size > MOST_PICKLED:
            raise Refused(f"its pickle has more than {MOST_PICKLED} bytes")
        return unpickle(self.zip.read(self.entries["data.pkl"]), self.path)

    def place(self, key):
        """Where the numbers of a storage begin in the file, and how many bytes they are."""
        entry = self.entries.get("data/" + key)
        if entry is None or entry.compress_type != zipfile.ZIP_STORED:
            raise Refused(f"storage {key} is missing or compressed")
        self.file.seek(self.begin + entry.header_offset + 26)
        name, extra = struct.unpack("<HH", self.file.read(4))
        return self.begin + entry.header_offset + 30 + name + extra, entry.file_size

    def close(self):
        self.zip.close()
        self.file.close()


class Window(io.RawIOBase):
    """A part of a file, as if it was one."""

    def __init__(self, file, begin, length):
        self.file, self.begin, self.length, self.at = file, begin, length, 0

    def readable(self):
        return True

    def seekable(self):
        return True

    def tell(self):
        return self.at

    def seek(self, offset, whence=0):
        self.at = offset + (0, self.at, self.length)[whence]
        return self.at

    def read(self, size=-1):
        left = max(self.length - self.at, 0)
        size = left if size is None or size < 0 else min(size, left)
        self.file.seek(self.begin + self.at)
        data = self.file.read(size)
        self.at += len(data)
        return data


def name_of(value):
    return value.name if isinstance(value, (Name, Record)) else getattr(value, "__name__", None)


def integers(values, what):
    if isinstance(values, Record):  # torch.Size
        values = values.args[0] if values.args else ()
    values = list(values)
    if not all(isinstance(value, int) and value >= 0 for value in values):
        raise Refused(f"{what} {str(values)[:80]} are no sizes")
    return values


def box_of(tensor, archive):
    """Where the numbers of a tensor are; None if it is none."""
    if not isinstance(tensor, Record):
        return None
    if tensor.name in ("_rebuild_parameter", "_rebuild_parameter_with_state"):
        return box_of(tensor.args[0], archive)
    if tensor.name == "_rebuild_from_type_v2":  # a Parameter or a Tensor with attributes
        return box_of(Record(name_of(tensor.args[0]), tensor.args[2]), archive)
    if tensor.name not in ("_rebuild_tensor_v2", "_rebuild_tensor_v3"):
        return None
    storage, offset, sizes, strides = tensor.args[:4]
    if not isinstance(storage, Storage):
        raise Refused("a tensor has no storage")
    dtype = storage.dtype
    if tensor.name == "_rebuild_tensor_v3":
        dtype = name_of(tensor.args[6])
    if dtype not in DTYPES:
        raise Refused(f"numbers of the kind {dtype} are not read")
    sizes, strides = integers(sizes, "sizes"), integers(strides, "strides")
    text, item = DTYPES[dtype]
    begin, length = archive.place(storage.key)
    last = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides))
    if 0 not in sizes and (offset < 0 or (last + 1) * item > length):
        raise Refused("a tensor reaches beyond its storage")
    return {"file": archive.path, "begin": begin + offset * item, "dtype": text, "sizes": sizes, "strides": strides}


def placement(value):
    name = name_of(value)
    if name == "Shard":
        dim = value.get("dim", 0)
        if not isinstance(dim, int):
            raise Refused("a shard without a dimension")
        return f"shard {dim}"
    return {"Replicate": "replicate"}.get(name, str(name))


def mesh_of(mesh):
    """The names of a mesh's dimensions."""
    if not isinstance(mesh, Record):
        return None
    names = mesh.get("_mesh_dim_names") or mesh.get("mesh_dim_names")
    return [str(name) for name in names] if names else None


def fsdp_entry(value, archive):
    """A tensor of a rank: {…} as it is printed, but for its name; None if it is no tensor."""
    if isinstance(value, Record) and value.name == "_rebuild_from_type_v2" and name_of(value.args[1]) == "DTensor":
        state = value.args[3]
        if isinstance(state, tuple):
            state = {**(state[0] or {}), **(state[1] or {})}
        if not isinstance(state, dict):
            raise Refused("a DTensor without its fields")
        local, spec = state.get("_local_tensor"), state.get("_spec")
        box = box_of(local, archive)
        if box is None or not isinstance(spec, Record):
            raise Refused("a DTensor without its numbers or its placements")
        meta = spec.get("tensor_meta")
        shape = meta.get("shape", 0) if isinstance(meta, Record) else None
        if shape is None:
            raise Refused("a DTensor without its whole shape")
        placements = spec.get("placements")
        return {**box, "full_shape": integers(shape, "sizes"), "mesh": mesh_of(spec.get("mesh")),
                "placements": [placement(value) for value in placements]}  # fmt: skip
    box = box_of(value, archive)
    return None if box is None else {**box, "full_shape": None, "placements": None, "mesh": None}


def show(entry):
    print(json.dumps(entry))


def list_fsdp(folder):
    worlds = {}
    for name in os.listdir(folder):
        match = re.fullmatch(r"model_world_size_(\d+)_rank_(\d+)\.pt", name)
        if match:
            worlds.setdefault(int(match[1]), set()).add(int(match[2]))
    if len(worlds) != 1:
        found = f"of {len(worlds)} runs, with world sizes {sorted(worlds)}" if worlds else "none"
        raise Refused(f"needs the files model_world_size_W_rank_R.pt of one run, and there are {found}")
    ((world, ranks),) = worlds.items()
    missing = sorted(set(range(min(world, 1 << 20))) - ranks)
    if missing:
        raise Refused(f"lacks model_world_size_{world}_rank_{missing[0]}.pt: of {world} ranks, {len(ranks)} are there")
    for rank in range(world):
        path = os.path.join(folder, f"model_world_size_{world}_rank_{rank}.pt")
        with named(path):
            archive = Archive(path)
            tensors = archive.pickled()
            if not isinstance(tensors, dict):
                raise Refused("not a dictionary of tensors")
            for key, value in tensors.items():
                with named(f"tensor {key}"):
                    entry = fsdp_entry(value, archive)
                if entry is not None:
                    show({"name": str(key), "rank": rank, "world": world, **entry})
            archive.close()


def list_dcp(folder):
    path = os.path.join(folder, ".metadata")
    with named(path):
        with open(path, "rb") as file:
            metadata = unpickle(file.read(MOST_PICKLED + 1), path)
        if name_of(metadata) != "Metadata":
            raise Refused("not the metadata of a distributed checkpoint")
        tensors, storage = metadata.get("state_dict_metadata", 0), metadata.get("storage_data", 2)
        if not isinstance(tensors, dict) or not isinstance(storage, dict):
            raise Refused("lacks state_dict_metadata or storage_data")
    for index, info in storage.items():
        name, offsets = index.get("fqn", 0), index.get("offset", 1)
        if isinstance(name, str) and name.startswith("optimizer"):
            continue  # none of the model's, and most of the files
        described = tensors.get(name)
        if name_of(described) != "TensorStorageMetadata":
            continue
        with named(f"{path}: tensor {name}"):
            relative = info.get("relative_path", 0)
            if not isinstance(relative, str) or relative != os.path.basename(relative) or relative.startswith(".."):
                raise Refused(f"file {str(relative)[:80]} is not in this folder")
            if info.get("transform_descriptors", 3):
                raise Refused("it is compressed or encrypted, which is not read")
            archive = Archive(os.path.join(folder, relative), info.get("offset", 1), info.get("length", 2))
            box = box_of(archive.pickled(), archive)
            archive.close()
            if box is None:
                raise Refused("no tensor")
            offsets = [0] * len(box["sizes"]) if offsets is None else integers(offsets, "offsets")
            show({"name": str(name), "shape": integers(described.get("size", 1), "sizes"), "offsets": offsets, **box})


class named:
    """Errors say where."""

    def __init__(self, where):
        self.where = where

    def __enter__(self):
        return self

    def __exit__(self, kind, problem, _):
        if kind is None or not issubclass(kind, Exception) or kind in (MemoryError, RecursionError):
            return
        text = str(problem) if kind is Refused else f"damaged: {kind.__name__}: {problem}"
        raise Refused(f"{self.where}: {text}") from None


def main():
    mode, folder = sys.argv[1:]
    try:
        {"fsdp": list_fsdp, "dcp": list_dcp}[mode](folder)
        show({"done": True})
    except (Refused, OSError) as problem:
        show({"error": str(problem)[:2000].encode(errors="replace").decode()})
    except (MemoryError, RecursionError) as problem:
        show({"error": f"{folder}: its pickles need more than this reads: {type(problem).__name__}"})


main()
