// Objects that belong to one process and must not be touched in its forked children.
//
// A connection has threads, and its server knows one client. A forked process lacks the threads, and locks may be held
// forever; a destructor would tell the server that views are gone that the parent still uses. So objects of a parent
// are neither used nor destroyed in its children: they stay in memory unchanged.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "core/base/process_generation.h"

namespace tdock::python {

// Whether Python runs its signal handlers in this thread.
bool IsMainThread();

// In a forked process, closes the inherited sockets that are connected to one of these addresses or listen at it
// ("unix:/path", "127.0.0.1:port"): otherwise servers and clients would consider the parent alive as long as this
// process is.
void CloseInheritedSockets(const std::set<std::string>& addresses);

// One object per process, made on first use and never destroyed, so that no lock of it is held in a fork. Thread-safe.
template <class T>
class OneEachProcess {
 public:
  T& Get() {
    Made* made = made_.load(std::memory_order_acquire);
    while (made == nullptr || made->generation != ProcessGeneration()) {
      auto fresh = std::make_unique<Made>();
      if (made_.compare_exchange_strong(made, fresh.get())) return fresh.release()->object;
    }
    return made->object;
  }

 private:
  struct Made {
    const uint64_t generation = ProcessGeneration();
    T object = {};
  };

  std::atomic<Made*> made_ = nullptr;
};

// A reference to an object, tagged with the process that made it. Thread-compatible.
template <class T>
class OfThisProcess {
 public:
  OfThisProcess() = default;
  explicit OfThisProcess(std::shared_ptr<T> object) : object_(std::move(object)), generation_(ProcessGeneration()) {}
  OfThisProcess(const OfThisProcess& other) { *this = other; }
  OfThisProcess& operator=(const OfThisProcess& other) {
    // A copy in a child would count references in the child's memory only: harmless, and kept forever like the first.
    auto object = other.object_;
    Leave();
    object_ = std::move(object);
    generation_ = other.generation_;
    return *this;
  }
  ~OfThisProcess() { Leave(); }

  bool here() const { return object_ != nullptr && generation_ == ProcessGeneration(); }
  // An object of another process may be read, if it is plain memory.
  const std::shared_ptr<T>& get() const { return object_; }
  T* operator->() const { return object_.get(); }
  T& operator*() const { return *object_; }
  void reset() { Leave(); }

 private:
  void Leave() {
    if (object_ != nullptr && generation_ != ProcessGeneration()) {
      new std::shared_ptr<T>(std::move(object_));  // never destroyed
    }
    object_.reset();
  }

  std::shared_ptr<T> object_;
  uint64_t generation_ = 0;
};

}  // namespace tdock::python
