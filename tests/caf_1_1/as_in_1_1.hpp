#pragma once

// Included before everything else in a source (-include): CAF 0.18.7 with what CAF 1.1 takes away or adds, as far as it
// matters here. The differences, and what to write instead, are in docs/caf.md.

#define TROUPE_READING_CAF

// `scheduled_actor` has a member of this name, which hides a type of that name inside the class of an actor.
#define categorize(element)                                                                                            \
  run_actions();                                                                                                       \
  message_category categorize(element)

// `actor_system_config` has no such members.
#define openssl_certificate not_in_caf_1_1_certificate
#define openssl_key not_in_caf_1_1_key
#define openssl_passphrase not_in_caf_1_1_passphrase
#define openssl_capath not_in_caf_1_1_capath
#define openssl_cafile not_in_caf_1_1_cafile
#define cli_helptext_printed not_in_caf_1_1_helptext_printed

#include <caf/all.hpp>
#include <caf/io/all.hpp>

#undef categorize
#undef openssl_certificate
#undef openssl_key
#undef openssl_passphrase
#undef openssl_capath
#undef openssl_cafile
#undef cli_helptext_printed
#undef TROUPE_READING_CAF
