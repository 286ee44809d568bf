// Checks that files contain exactly the expected weights. Internal to this module.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "model/files/safetensors.h"

namespace tdock::model {

class WeightCheck {
 public:
  // The names in the files.
  explicit WeightCheck(const std::vector<std::string>& names) : unexpected_(names.begin(), names.end()) {}

  // `stored` is what the files have under `name_there`, or nullptr. Weights must have a floating-point dtype.
  void Expect(const std::string& name, const std::string& name_there, const std::vector<int64_t>& shape,
              const TensorInfo* stored);
  // An optional tensor. Returns whether it exists.
  bool Allow(const std::string& name_there) { return unexpected_.erase(name_there) > 0; }

  // InvalidArgument lists the missing and the unexpected names, and gives the first wrong shape and their count.
  // `shapes_from` names what determines the expected shapes.
  absl::Status Status(const std::string& shapes_from) const;

 private:
  struct ShapeMismatch {
    std::string name;
    TensorInfo stored;
    std::vector<int64_t> shape;
  };
  size_t expected_ = 0;
  std::set<std::string> unexpected_;
  std::vector<std::string> missing_, wrong_dtypes_;
  std::vector<ShapeMismatch> mismatches_;
};

}  // namespace tdock::model
