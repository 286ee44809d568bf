// For tests: a folder on the disk that is gone when the test ends.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>

#include "core/base/env.h"

namespace tdock::model {

class TestFolder {
 public:
  TestFolder() : path_(testing::TempDir() + "/model_test_XXXXXX") { EXPECT_NE(::mkdtemp(path_.data()), nullptr); }
  ~TestFolder() { std::filesystem::remove_all(path_); }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string Path(const std::string& name) const { return JoinPath(path_, name); }

 private:
  std::string path_;
};

}  // namespace tdock::model
