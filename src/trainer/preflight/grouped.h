// Numbers as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace tdock::trainer {

std::string Grouped(int64_t number);   // "1,234,567"
std::string Percent(double share);     // "12.3 %"; "0.02 %"
std::string Mebibytes(int64_t bytes);  // "812 MiB", "2.31 GiB"

}  // namespace tdock::trainer
