// References to Python objects, held by C++.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <vector>

namespace tdock::python {

// Objects and views of their memory (buffers of the buffer protocol). Made and filled with the GIL held. The last
// shared_ptr may be released in any thread, with any lock held, so that does not take the GIL: it leaves the references
// to ReleaseDeferred.
class ObjectRefs {
 public:
  static std::shared_ptr<ObjectRefs> Make();

  ObjectRefs(const ObjectRefs&) = delete;
  ObjectRefs& operator=(const ObjectRefs&) = delete;

  void Add(nanobind::object object) { objects_.push_back(object.release().ptr()); }
  // A view of the object's memory, or null, with Python's error set.
  const Py_buffer* View(nanobind::handle object, int flags);
  void Reserve(size_t views) { views_.reserve(views); }

 private:
  ObjectRefs() = default;
  ~ObjectRefs() = default;

  friend void ReleaseDeferred();

  // Needs the GIL.
  void Release();
  static void Discard(ObjectRefs* refs) noexcept;

  std::vector<PyObject*> objects_;
  std::vector<std::unique_ptr<Py_buffer>> views_;
};

// Drops the references whose last shared_ptr has been released since. Needs the GIL.
void ReleaseDeferred();

}  // namespace tdock::python
