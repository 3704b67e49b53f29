#include "local_messages.hpp"
#include <troupe/actors/handles.hpp>

#include <caf/init_global_meta_objects.hpp>

namespace troupe::actors {

void init_meta_objects() {
  caf::init_global_meta_objects<caf::id_block::troupe_messages>();
  caf::init_global_meta_objects<caf::id_block::troupe_actors>();
  caf::init_global_meta_objects<caf::id_block::troupe_local>();
}

} // namespace troupe::actors
