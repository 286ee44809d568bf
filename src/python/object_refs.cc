#include "python/object_refs.h"

#include <mutex>
#include <utility>

#include "python/process.h"

namespace nb = nanobind;

namespace tdock::python {
namespace {

struct Deferred {
  std::mutex mu;
  std::vector<ObjectRefs*> all;
};

// Threads of a connection may still discard objects while the process ends, and while it forks.
Deferred& TheDeferred() {
  static constinit OneEachProcess<Deferred> deferred;
  return deferred.Get();
}

}  // namespace

std::shared_ptr<ObjectRefs> ObjectRefs::Make() {
  return std::shared_ptr<ObjectRefs>(new ObjectRefs(), &ObjectRefs::Discard);
}

const Py_buffer* ObjectRefs::View(nb::handle object, int flags) {
  auto view = std::make_unique<Py_buffer>();
  if (PyObject_GetBuffer(object.ptr(), view.get(), flags) != 0) return nullptr;
  views_.push_back(std::move(view));
  return views_.back().get();
}

void ObjectRefs::Release() {
  for (const auto& view : views_) PyBuffer_Release(view.get());
  for (PyObject* const object : objects_) Py_DECREF(object);
}

void ObjectRefs::Discard(ObjectRefs* refs) noexcept {
  Deferred& deferred = TheDeferred();
  const std::lock_guard lock(deferred.mu);
  deferred.all.push_back(refs);
}

void ReleaseDeferred() {
  std::vector<ObjectRefs*> all;
  {
    Deferred& deferred = TheDeferred();
    const std::lock_guard lock(deferred.mu);
    all.swap(deferred.all);
  }
  for (ObjectRefs* const refs : all) {
    refs->Release();
    delete refs;
  }
}

}  // namespace tdock::python
