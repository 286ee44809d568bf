#include "trainer/rollout_servers/server_engine.h"
