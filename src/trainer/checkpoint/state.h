// The state of a run's objects, for one that goes on where another stopped.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tdock::trainer {

class Stateful;

// Tensors and short texts by name, such as "actor/optimizer/steps". Not thread-safe.
class State {
 public:
  // A name is given once.
  void SetInteger(const std::string& name, int64_t value);
  void SetNumber(const std::string& name, double value);  // comes back to the bit
  void SetText(const std::string& name, std::string value);
  // Shares memory with `tensor`: see Snapshot().
  void SetTensor(const std::string& name, const at::Tensor& tensor);
  // Some of the numbers of a tensor of `total`, flat, from `begin`: the others are of other states, which are put
  // together (Merge()).
  void SetPart(const std::string& name, int64_t begin, int64_t total, const at::Tensor& tensor);
  // What the object saves, under `prefix`/.
  void Set(const std::string& prefix, const Stateful& object);

  // InvalidArgument names what is missing or is not what is asked for.
  absl::StatusOr<int64_t> Integer(const std::string& name) const;
  absl::StatusOr<double> Number(const std::string& name) const;
  absl::StatusOr<std::string> Text(const std::string& name) const;
  // Copies numbers of a tensor of `total`, from `begin`, into `into` of the same dtype and any shape: from a tensor of
  // that name, or from parts of it, however they are cut. InvalidArgument names the numbers that no part has, or parts
  // that overlap, of which none can be trusted.
  absl::Status CopyPart(const std::string& name, int64_t begin, int64_t total, const at::Tensor& into) const;
  // Loads what Set() saved.
  absl::Status Get(const std::string& prefix, Stateful& object) const;

  // Takes the tensors of `other`. InvalidArgument names one that both have.
  absl::Status Merge(const State& other);

  // With copies of the tensors, on the CPU.
  State Snapshot() const;

  // What has been set, to be written to files.
  const std::map<std::string, std::string>& texts() const { return texts_; }
  const std::map<std::string, at::Tensor>& tensors() const { return tensors_; }
  int64_t tensor_bytes() const;
  bool empty() const { return texts_.empty() && tensors_.empty(); }

 private:
  std::map<std::string, std::string> texts_;
  std::map<std::string, at::Tensor> tensors_;
};

// What a run cannot go on without.
class Stateful {
 public:
  virtual ~Stateful() = default;

  // Everything that the object's behaviour depends on from now on, beside what it was made of.
  virtual void Save(State& state) const = 0;
  // Into an object that was made of the same. After an error discard it.
  virtual absl::Status Load(const State& state) = 0;
};

}  // namespace tdock::trainer
