// What belongs to one process and must not be touched in those that are forked from it.
//
// A connection has threads, and the one at its other end knows one client. In a forked process the threads are not
// there, and locks may be held for ever; a destructor would tell the server that views are gone at which the parent
// still looks. So what a parent made is neither used nor destroyed in its children: it stays in their memory, as it is.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>

namespace tdock::python {

// How many forks lie between the process that loaded this module and this one.
uint64_t ProcessGeneration();

// Whether Python's signal handlers run in this thread.
bool IsMainThread();

// Closes, in a forked process, the sockets that it has from its parent and that lead to one of these addresses or lie
// at it ("unix:/path", "127.0.0.1:port"): servers and clients would take the parent to be alive as long as this one is.
void CloseInheritedSockets(const std::set<std::string>& addresses);

// An object for each process that asks, made when it first does and never destroyed: a fork finds no lock of it held.
// Thread-safe.
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

// A share in an object, by the process that made it. Thread-compatible.
template <class T>
class OfThisProcess {
 public:
  OfThisProcess() = default;
  explicit OfThisProcess(std::shared_ptr<T> object) : object_(std::move(object)), generation_(ProcessGeneration()) {}
  OfThisProcess(const OfThisProcess& other) { *this = other; }
  OfThisProcess& operator=(const OfThisProcess& other) {
    // A copy in a child would be counted in memory that nobody else sees: harmless, and kept for ever like the first.
    auto object = other.object_;
    Leave();
    object_ = std::move(object);
    generation_ = other.generation_;
    return *this;
  }
  ~OfThisProcess() { Leave(); }

  bool here() const { return object_ != nullptr && generation_ == ProcessGeneration(); }
  // Of another process it may be read, if it is memory only.
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
