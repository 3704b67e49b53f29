// No include guard: as_in_1_1.hpp reads it on behalf of CAF 0.18.7, which still includes it once. Later includes are
// ours.
#ifndef TROUPE_READING_CAF
#error "CAF 1.1 has no caf/make_message.hpp: include caf/message.hpp"
#endif
#include <caf/message.hpp>
