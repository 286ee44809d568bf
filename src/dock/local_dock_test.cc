#include "tdock/local_dock.h"

#include "dock/conformance_data.h"
#include "dock/conformance_flow.h"
#include "dock/conformance_life.h"

namespace tdock {
namespace {

INSTANTIATE_TEST_SUITE_P(Local, DockConformance,
                         testing::Values([](Clock& clock) { return MakeLocalDock({.clock = &clock}); }));

}  // namespace
}  // namespace tdock
