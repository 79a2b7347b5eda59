/* CHECK(call) ends the program where a call of PDBP is not done. */
#ifndef CHECK_H
#define CHECK_H

#include <pdbp.h>
#include <stdio.h>
#include <stdlib.h>

static void check(pdbp_status status, const char *call) {
    if (status != PDBP_DONE) {
        fprintf(stderr, "%s\n%s: %s\n", call, pdbp_status_name(status), pdbp_error());
        exit(1);
    }
}
#define CHECK(call) check(call, #call)

#endif
