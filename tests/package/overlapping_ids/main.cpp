// A host's type-id block at an offset chosen by the build. Inside Troupe's range it must not compile.
#include <troupe/actor_system.hpp>

namespace host {

struct message {};

template <class Inspector>
bool inspect(Inspector& f, message& x) {
  return f.object(x).fields();
}

} // namespace host

CAF_BEGIN_TYPE_ID_BLOCK(host, caf::first_custom_type_id + FIRST_ID_OFFSET)

CAF_ADD_TYPE_ID(host, (host::message))

CAF_END_TYPE_ID_BLOCK(host)
