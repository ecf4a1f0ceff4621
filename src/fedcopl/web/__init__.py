"""Two local pages: `review`, where a site's expert looks at the labels, and `watch`, where a run is looked at."""
