/* Inside the fetch schedule.
 *
 * fetch.c        what is fetched when, and dropped
 * fetch_place.c  where it is in the window */
#ifndef CZ_LAYOUT_FETCH_IMPL_H
#define CZ_LAYOUT_FETCH_IMPL_H

#include "layout/fetch.h"

/* Gives each stay of s its place, and the window its size. Equal schedules get equal places.
 * CZ_NOMEM. */
cz_status fetch_place(const struct fetch_options *options, struct fetch_schedule *s);

#endif
