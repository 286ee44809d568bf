// What a training step adds up over its ranks.
#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "bench/runtime/runtime_benchmarks.h"
#include "bench/runtime/workers.h"
#include "runtime/collective/gloo/gloo_collective.h"
#include "runtime/launch/port.h"
#include "runtime/rendezvous/rendezvous.h"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"
#include "trainer/stages/guard.h"
