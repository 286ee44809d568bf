#include "python/keep.h"

#include <mutex>
#include <utility>

#include "python/process.h"

namespace nb = nanobind;

namespace tdock::python {
namespace {

struct Trash {
  std::mutex mu;
  std::vector<Kept*> all;
};

// Threads of a connection may still throw something away while the process ends, and while it forks.
Trash& TheTrash() {
  static constinit OneEachProcess<Trash> trash;
  return trash.Get();
}

}  // namespace

std::shared_ptr<Kept> Kept::Make() { return std::shared_ptr<Kept>(new Kept(), &Kept::Discard); }

const Py_buffer* Kept::View(nb::handle object, int flags) {
  auto view = std::make_unique<Py_buffer>();
  if (PyObject_GetBuffer(object.ptr(), view.get(), flags) != 0) return nullptr;
  views_.push_back(std::move(view));
  return views_.back().get();
}

void Kept::Release() {
  for (const auto& view : views_) PyBuffer_Release(view.get());
  for (PyObject* const object : objects_) Py_DECREF(object);
}

void Kept::Discard(Kept* kept) noexcept {
  Trash& trash = TheTrash();
  const std::lock_guard lock(trash.mu);
  trash.all.push_back(kept);
}

void EmptyTrash() {
  std::vector<Kept*> all;
  {
    Trash& trash = TheTrash();
    const std::lock_guard lock(trash.mu);
    all.swap(trash.all);
  }
  for (Kept* const kept : all) {
    kept->Release();
    delete kept;
  }
}

}  // namespace tdock::python
